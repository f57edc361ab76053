// Segments of a row of logits.
#pragma once

constexpr int SEGMENT = 64;
DEVICE float lowest() { return __int_as_float(0xff800000); }  // minus infinity
// What a difference of logits is multiplied by; at temperature 0 nothing is drawn, and all weigh the same.
DEVICE float inverse_of(float temperature) { return temperature > 0.0f ? 1.0f / temperature : 0.0f; }
