SAVEPOINT tenure_request;
