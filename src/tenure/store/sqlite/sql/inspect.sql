-- inspect: what the file says about itself.
SELECT sqlite_version(),
    (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size),
    (SELECT journal_mode FROM pragma_journal_mode),
    (SELECT synchronous FROM pragma_synchronous),
    (SELECT file FROM pragma_database_list WHERE name = 'main');
