-- huey deletes a task before its handler runs; what is left here was not begun.
SELECT count(*)
FROM task;
