"""Networks for images whose convolutions run as megakernels."""
