// Sizes of the ring kernels, all known when they are compiled: units, ring slots, and where shared memory holds what.
//
// A slot holds one unit of work:
//
//     weights          SF_COLS columns of SF_UNIT blocks (k64 x n64)     } bulk copies
//     scales (zeros)   SCALE_ROWS rows of SF_COLS x 64 values             }
//     tokens           SF_ROWS rows of SF_UNIT x 64 values                  cp.async groups
//
// Shared memory: the rings of the warps, their barriers, SF_EXCHANGES barriers of the cluster, partial sums of the warps, SF_EXCHANGES
// buffers for partial sums of the cluster; from RING_END on, what the kernel itself keeps.
//
// Defines (see decode/ring.py): SF_BITS SF_BF16 SF_ZEROS SF_GROUP SF_K SF_N SF_ROWS SF_COLS SF_UNIT SF_WARPS SF_SLOTS SF_SPLIT SF_EXCHANGES
#pragma once
#include "ptx.cuh"
#include "dequant.cuh"

SF_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
SF_DEVICE constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

constexpr int K_BLOCKS = ceil_div(SF_K, 64);
constexpr int N_BLOCKS = ceil_div(SF_N, 64);
constexpr int N_PITCH = N_BLOCKS * 64;  // elements of a scale row
constexpr int GROUPS = ceil_div(SF_K, SF_GROUP);
constexpr int TILES = ceil_div(N_BLOCKS, SF_COLS);
constexpr int TILE_N = SF_COLS * 64;
constexpr int UNITS = ceil_div(K_BLOCKS, SF_UNIT);
constexpr int UNIT_K = SF_UNIT * 64;
constexpr bool SHORT_UNIT = K_BLOCKS % SF_UNIT != 0;    // the last unit has fewer blocks
constexpr bool SHORT_TILE = N_BLOCKS % SF_COLS != 0;    // the last tile has fewer columns
constexpr int TOKEN_TILES = ceil_div(SF_ROWS, 8);

constexpr int BLOCK_BYTES = SF_BITS * 512;
constexpr int SUBTILE_BYTES = BLOCK_BYTES / 4;
constexpr int COLUMN_BYTES = SF_UNIT * BLOCK_BYTES;

// Sums of integers are scaled and added up every FOLD_K of the K axis: the largest run that stays inside one group and one unit.
constexpr int FOLD_K = SF_GROUP >= SF_K || SF_GROUP % UNIT_K == 0 ? UNIT_K
                       : UNIT_K % SF_GROUP == 0                   ? SF_GROUP
                       : SF_GROUP % 64 == 0                       ? 64
                                                                  : 32;
constexpr int SCALE_ROWS = UNIT_K / FOLD_K;
constexpr int SCALE_ROW_BYTES = TILE_N * 2;
constexpr bool ZERO_ROWS = SF_ZEROS != SF_ZEROS_NONE;

constexpr int TOKEN_PITCH = UNIT_K * 2 + 16;  // 16 bytes of padding make ldmatrix conflict-free
constexpr int TOKEN_CHUNKS = UNIT_K / 8;      // 16-byte chunks of a row
constexpr int ROWS_PER_COPY = 32 / TOKEN_CHUNKS;
static_assert(TOKEN_CHUNKS <= 32, "a row of a unit is at most one chunk per lane");
constexpr int SCALE_OFFSET = SF_COLS * COLUMN_BYTES;
constexpr int ZERO_OFFSET = SCALE_OFFSET + SCALE_ROWS * SCALE_ROW_BYTES;
constexpr int WEIGHT_SLOT_BYTES = ZERO_OFFSET + (ZERO_ROWS ? SCALE_ROWS * SCALE_ROW_BYTES : 0);
static_assert(WEIGHT_SLOT_BYTES % 128 == 0, "bulk copies into lines of 128 bytes: 16-byte alignment alone costs up to 20 %");
constexpr int TOKEN_OFFSET = SF_SLOTS * WEIGHT_SLOT_BYTES;  // the token slots of a warp lie behind its weight slots
constexpr int TOKEN_SLOT_BYTES = SF_ROWS * TOKEN_PITCH;
constexpr int RING_BYTES = round_up(TOKEN_OFFSET + SF_SLOTS * TOKEN_SLOT_BYTES, 128);

constexpr int PARTIAL_PITCH = TILE_N + 4;  // floats; makes the stores of an accumulator fragment conflict-free
constexpr int PARTIAL_BYTES = SF_ROWS * PARTIAL_PITCH * 4;
constexpr int QUADS = TILE_N / 4;  // a quad is 4 adjacent columns of one row
constexpr int OWNED_QUADS = ceil_div(QUADS, SF_SPLIT);

constexpr int BARRIER_OFFSET = SF_WARPS * RING_BYTES;
constexpr int EXCHANGE_BARRIER_OFFSET = BARRIER_OFFSET + SF_WARPS * SF_SLOTS * 8;
constexpr int PARTIAL_OFFSET = round_up(EXCHANGE_BARRIER_OFFSET + SF_EXCHANGES * 8, 16);
constexpr int EXCHANGE_OFFSET = PARTIAL_OFFSET + SF_WARPS * PARTIAL_BYTES;
constexpr int EXCHANGE_BYTES = SF_SPLIT > 1 ? SF_SPLIT * SF_ROWS * OWNED_QUADS * 16 : 0;
constexpr int RING_END = EXCHANGE_OFFSET + SF_EXCHANGES * EXCHANGE_BYTES;  // what a kernel keeps besides begins here
