DELETE FROM bare_held WHERE job IN (SELECT value FROM json_each(:jobs));
