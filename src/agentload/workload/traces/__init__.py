"""Recorded sessions: read from public formats, kept in one session file, replayed, written out."""
