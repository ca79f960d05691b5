-- round_trip: there and back.
SELECT 1;
