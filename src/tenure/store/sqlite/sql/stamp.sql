-- stamp: it stands as long as no queue and no gate changes.
SELECT stamp FROM tenure_stamp;
