"""Subscribers and letters."""
