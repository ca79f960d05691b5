"""Profile: the five vocabularies as data. A .toml says how queues behave and what things are called, a .sql per engine
which views and functions show it; `loader` reads them, shipped ones and those that users write.
No profile has a code path of its own."""
