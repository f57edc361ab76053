// Ticket dispatch.
#pragma once

struct Tickets : Counter {
  DEVICE int take(const Launch& launch, int sent) {
    const int row = ticket(launch);
    return row < launch.count ? row : -1;
  }
};
