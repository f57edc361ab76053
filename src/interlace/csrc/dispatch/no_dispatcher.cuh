// Hooks of a launch without a dispatcher.
#pragma once

DEVICE void finish(const Launch& launch, const Item& item, int taken, int semaphore) {}
DEVICE void serve(const Launch& launch) {}
