PRAGMA page_size;
