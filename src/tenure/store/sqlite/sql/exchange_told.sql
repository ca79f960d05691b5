-- exchange_told: what the last exchange of this connection claimed.
SELECT number, told, partial FROM tenure_told;
