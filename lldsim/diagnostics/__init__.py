"""Reading records: collapse, phases, statistics over seeds. Needs only records and arrays, never the trainer."""
