"""Tests: folders mirror the code (CONTRIBUTING.md); what they share is imported by its full name."""
