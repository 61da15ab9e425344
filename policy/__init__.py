"""From records to placements: pure code that reads no clock, no environment and no socket."""
