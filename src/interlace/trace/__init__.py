"""What happened, item by item, on one clock."""
