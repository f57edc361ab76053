// Index arithmetic.
#pragma once
#include "../ptx.cuh"

// Quotients round down; the first two functions require a >= 0.
DEVICE int quotient(int a, int b) { return (unsigned)a / (unsigned)b; }
DEVICE int rest(int a, int b) { return (unsigned)a % (unsigned)b; }
DEVICE int floor_quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
DEVICE int floor_rest(int a, int b) { return a - floor_quotient(a, b) * b; }
