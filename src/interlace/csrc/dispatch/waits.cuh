// Whether an item waits.
#pragma once
#include "../ring/ring.cuh"

// Whether an item waits for no other, nor for parts of its tile.
DEVICE bool waits_for_none(const Launch& launch, int row) {
  const ItemRow& item = launch.items[row];
  return item.wait_lo == item.wait_hi && (item.parts < 2 || item.split >= 0);
}
