// Ticket dispatch.
#pragma once
#include "publish.cuh"
#include "no_dispatcher.cuh"
#include "counter.cuh"

struct Tickets : Counter {
  DEVICE int take(const Launch& launch, int sent) {
    const int row = ticket(launch);
    return row < launch.count ? row : -1;
  }
};
