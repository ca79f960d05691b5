RELEASE tenure_request;
