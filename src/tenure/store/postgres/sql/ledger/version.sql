SELECT tenure.schema_version();
