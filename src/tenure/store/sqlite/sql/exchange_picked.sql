-- exchange_picked: how many jobs the last exchange of this connection granted, and their rowids.
SELECT number, rowids FROM tenure_picked;
