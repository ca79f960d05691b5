-- search_path: a profile's SQL names what it means in full; nothing that somebody put into another schema is picked up by chance.
SET LOCAL search_path = pg_catalog, pg_temp
