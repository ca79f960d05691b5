ROLLBACK TO tenure_request;
