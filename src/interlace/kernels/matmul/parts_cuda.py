"""How the parts of a split tile of a matmul meet in the one launch, in CUDA C++: members of ``Matmul``.

Of the parts of a split tile all but the last in the plan's sequence leave their sums in the workspace. The last adds
these sums to its own. They are words that say themselves whether they are there (``kernels/primitives/words_cuda``): no
part posts for them, and the last looks for them while its last products run, when mostly they are there. Who adds and
in which order is settled by the plan, so a result is the same bit by bit in every run.

Why words hold a part's sums of this run, and no others: a part stores them, and another takes them, behind a stage that
the loader that waits has filled. This loader has waited for the launch before, which left all words empty, and for the
item's waits. Rows are shared with ops alone that have ended then (``executors/sums``), whose words were empty before
their tiles were posted.

Where rows are normalised here a part has the squares of its own k, which go with its sums and are added like them.
"""

from __future__ import annotations

SUMS_OF_PARTS = r"""
  // Of the parts of a split tile all but the last in the plan's sequence leave their sums in the workspace; the last
  // takes them, which are mostly there, and adds them in the order of k to what it has itself.
  DEVICE static bool closes(const Item& item) { return item.parts > 1 && !(item.code & LEAVES_SUMS); }
  // Where a thread's sums begin: of a part that leaves them, or of one of those that the last part adds.
  DEVICE static float4* sums_of(const Launch& launch, const Item& item, int other) {
    const long long row = (long long)item.slot + (other * WARPGROUPS + warpgroup()) * OF_PART;
    return reinterpret_cast<float4*>(launch.workspace) + row * 128 + threadIdx.x % 128;
  }
  DEVICE static void leave(const Launch& launch, const Item& item, const float (&sums)[GATES][BLOCKS][SUMS],
                           const Squares& squares) {
    const float (*const flat)[4] = reinterpret_cast<const float (*)[4]>(&sums[0][0][0]);
    float4* const mine = sums_of(launch, item, 0);
    random_delay(launch, item, 2);
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) fill_words(mine + i * 128, flat[i][0], flat[i][1], flat[i][2], flat[i][3]);
    leave_squares(mine + COUNT / 4 * 128, squares);
  }
  // Squares of rows that are normalised here, of one block of rows or two.
  DEVICE static void leave_squares(float4* to, const Squares& squares) {
    if (OWN) fill_words(to, squares[0][0], squares[0][1], squares[BLOCKS - 1][0], squares[BLOCKS - 1][1]);
  }
  DEVICE static void add_squares(Squares& squares, const float4& value) {
    squares[0][0] += value.x, squares[0][1] += value.y;
    if (BLOCKS > 1) squares[BLOCKS - 1][0] += value.z, squares[BLOCKS - 1][1] += value.w;
  }
  // Where a thread's pieces of the sums of some other parts lie, and which there are: from the part `from` on, and of
  // each from `piece` on.
  template <int PIECES> struct Others {
    float4* first;
    int left, pieces;
    DEVICE Others(const Launch& launch, const Item& item, int from, int piece, int end = COUNT / 4)
        : first(sums_of(launch, item, from) + piece * 128), left(item.parts - 1 - from), pieces(end - piece) {}
    DEVICE bool has(int n) const { return n / PIECES < left && n % PIECES < pieces; }
    DEVICE float4* operator()(int n) const {
      return first + (n / PIECES * WARPGROUPS * OF_PART + n % PIECES) * 128;
    }
  };
  // Of one part's share those that the others have left there.
  struct Shared {
    float4* first;
    int columns;
    DEVICE Shared(const Launch& launch, const Item& item)
        : first(share_of(launch, item, item.part, 0)), columns(groups_of(item.part) * 8) {}
    DEVICE bool has(int n) const {
      return MORE == 0 || n % OF_SHARE >= PIECES || n % OF_SHARE % GROUPS * 8 < columns;
    }
    DEVICE float4* operator()(int n) const {
      return first + (n / OF_SHARE * WARPGROUPS * OF_SHARE + n % OF_SHARE) * 128;
    }
  };
  template <int N, class AT> DEVICE static void look(float4 (&values)[N], const AT& at) {
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = at.has(n) ? load_words(at(n)) : make_float4(0, 0, 0, 0);
  }
  // Sums that others leave and this thread has looked for, when they are there; their words are empty behind it.
  template <int N, class AT>
  DEVICE static void take(const Launch& launch, const Item& item, float4 (&values)[N], const AT& at) {
    if (!await_words(launch, values, at)) give_up(launch, item.number, ~item.split, item.parts - 1, 0);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (at.has(n)) empty_words(at(n));
  }
  template <int PIECES>
  DEVICE static void add_pieces(float4 (&total)[PIECES], const float4 (&values)[OTHERS > 0 ? OTHERS * PIECES : 1]) {
#pragma unroll
    for (int t = 0; t < OTHERS; ++t)
#pragma unroll
      for (int j = 0; j < PIECES; ++j) {
        const float4 value = values[t * PIECES + j];
        total[j].x += value.x, total[j].y += value.y, total[j].z += value.z, total[j].w += value.w;
      }
  }
  DEVICE static void add_others(const Launch& launch, const Item& item, float (&sums)[GATES][BLOCKS][SUMS],
                                float4 (&early)[EARLY ? OTHERS * COUNT / 4 : 1], Squares& squares) {
    float (*const flat)[4] = reinterpret_cast<float (*)[4]>(&sums[0][0][0]);
    constexpr int FIT = (SUM_REGISTERS - OWN * 32 - COUNT) / (4 * (OTHERS + 1)), MOST = FIT > 1 ? FIT : 1;
    constexpr int TRIPS = (COUNT / 4 + MOST - 1) / MOST, PIECES = EARLY ? COUNT / 4 : (COUNT / 4 + TRIPS - 1) / TRIPS;
#pragma unroll
    for (int i = 0; i < COUNT / 4; i += PIECES) {
      float4 total[PIECES], values[OTHERS > 0 ? OTHERS * PIECES : 1];
#pragma unroll
      for (int j = 0; j < PIECES; ++j) total[j] = make_float4(0, 0, 0, 0);
      if constexpr (EARLY) {
        take(launch, item, early, Others<PIECES>(launch, item, 0, 0));
        add_pieces(total, early);
      }
#pragma unroll 1
      for (int from = EARLY ? OTHERS : 0; from < item.parts - 1; from += OTHERS) {
        const Others<PIECES> at(launch, item, from, i);
        look(values, at);
        take(launch, item, values, at);
        add_pieces(total, values);
      }
#pragma unroll
      for (int j = 0; j < PIECES && i + j < COUNT / 4; ++j) {
        flat[i + j][0] += total[j].x, flat[i + j][1] += total[j].y;
        flat[i + j][2] += total[j].z, flat[i + j][3] += total[j].w;
      }
    }
    if constexpr (OWN) {
      float4 values[OTHERS > 0 ? OTHERS : 1];
#pragma unroll 1
      for (int from = 0; from < item.parts - 1; from += OTHERS) {
        const Others<1> at(launch, item, from, COUNT / 4, OF_PART);
        look(values, at);
        take(launch, item, values, at);
#pragma unroll
        for (int n = 0; n < OTHERS; ++n) add_squares(squares, values[n]);
      }
    }
  }

  // Where parts share the sums of a tile, each leaves those of the others' shares, takes what they leave of its own,
  // and adds that to what it has, in the order of k. Of a share the others' sums lie one behind the other.
  DEVICE static float4* share_of(const Launch& launch, const Item& item, int share, int other) {
    const long long row = (long long)item.slot + ((share * (SHARES - 1) + other) * WARPGROUPS + warpgroup()) * OF_SHARE;
    return reinterpret_cast<float4*>(launch.workspace) + row * 128 + threadIdx.x % 128;
  }
  DEVICE static void leave_shares(const Launch& launch, const Item& item, const float (&sums)[GATES][BLOCKS][SUMS],
                                  float (&own)[GATES][BLOCKS][SHARE / 2], const Squares& squares) {
    random_delay(launch, item, 2);
#pragma unroll
    for (int share = 0; share < SHARES; ++share) {
      float4* const theirs = share_of(launch, item, share, item.part - (item.part > share));
#pragma unroll
      for (int n = 0; n < PIECES; ++n) {
        const int b = n / GROUPS % BLOCKS, from = (first_group(share) + n % GROUPS) * 4;
        if (n % GROUPS >= groups_of(share)) continue;
        const float* const piece = &sums[n / GROUPS / BLOCKS][b][from];
        float* const mine = &own[n / GROUPS / BLOCKS][b][n % GROUPS * 4];
        if (share == item.part) {
#pragma unroll
          for (int t = 0; t < 4; ++t) mine[t] = piece[t];
        } else {
          fill_words(theirs + n * 128, piece[0], piece[1], piece[2], piece[3]);
        }
      }
      if (share != item.part) leave_squares(theirs + PIECES * 128, squares);
    }
  }
  DEVICE static void add_shares(const Launch& launch, const Item& item, float (&own)[GATES][BLOCKS][SHARE / 2],
                                Squares& squares) {
    float4 values[(SHARES - 1) * OF_SHARE];
    const Shared at(launch, item);
    look(values, at);
    take(launch, item, values, at);
#pragma unroll
    for (int n = 0; n < PIECES; ++n) {
      float4 total = values[n];
#pragma unroll
      for (int other = 1; other < SHARES - 1; ++other) {
        const float4 value = values[other * OF_SHARE + n];
        total.x += value.x, total.y += value.y, total.z += value.z, total.w += value.w;
      }
      float* const mine = &own[n / GROUPS / BLOCKS][n / GROUPS % BLOCKS][n % GROUPS * 4];
      mine[0] += total.x, mine[1] += total.y, mine[2] += total.z, mine[3] += total.w;
    }
    if constexpr (OWN)
#pragma unroll
      for (int other = 0; other < SHARES - 1; ++other) add_squares(squares, values[other * OF_SHARE + PIECES]);
  }
"""
