"""From plain loops to loops that load ahead: circular buffers, their barriers and who executes what."""
