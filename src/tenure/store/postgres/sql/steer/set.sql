-- set: move the clock of a test's database.
UPDATE tenure.test_clock
SET at = tenure.from_us(%(now_us)s)
