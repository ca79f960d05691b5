"""An app with handlers and tasks."""
