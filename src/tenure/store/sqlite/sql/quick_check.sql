PRAGMA quick_check(20);
