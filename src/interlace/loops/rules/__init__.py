"""What a kernel must keep to, checked before anything is rewritten."""
