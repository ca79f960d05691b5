SELECT number, name, checksum FROM tenure.migration ORDER BY number;
