"""The durable record of all runs in SQLite: schema, tables, retention, the reserve on disk."""
