INSERT INTO tenure.migration (number, name, checksum) VALUES (%(number)s, %(name)s, %(checksum)s);
