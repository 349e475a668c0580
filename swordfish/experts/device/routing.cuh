// Which rows an expert gets. A pair is a token and one of its top-k experts, numbered token * top_k + slot; a block is up to
// `block_rows` pairs of one expert, next to each other in the order by experts.
//
//     schedule   number of blocks, number of pairs in order, 0, 0, then for each block its expert as a whole: a Group
//     order      the pairs sorted by expert; those whose expert is not here are left out
//
// With SF_DIRECT (one token) nothing is sorted: block i is pair i.
//
// What a caller may hand over wrongly on the device ends here: an id outside the experts counts as "not here".
#pragma once
#include "swordfish/decode/device/ptx.cuh"

#if SF_IDS64
typedef i64 Id;
#else
typedef int Id;
#endif

// An expert that has rows: where its blocks begin among all blocks, where its rows begin in the order, and how many there are.
struct Group { int expert, first_block, first_place, rows; };

struct Routing {
  const int *schedule, *order;
  const Id* ids;         // of the pairs
  const int* expert_map; // global id -> place among the experts here; null if all are here
  int pairs, global_experts;

  // Place of the pair's expert among the SF_EXPERTS of the weights, or -1.
  SF_DEVICE int expert_of(int pair) const {
    const i64 id = load_fresh(ids + pair);
    if (id < 0 || id >= global_experts) return -1;
    const int expert = expert_map ? load_fresh(expert_map + id) : (int)id;
    return expert >= 0 && expert < SF_EXPERTS ? expert : -1;
  }

  SF_DEVICE int blocks() const { return SF_DIRECT ? pairs : load_fresh(schedule); }

  // The expert that a block belongs to.
  SF_DEVICE Group group(int block) const {
    if (SF_DIRECT) {
      const int expert = expert_of(block);
      return {max(expert, 0), block, block, expert >= 0};
    }
    const Words4 v = load_fresh((const Words4*)schedule + 1 + block);
    return {(int)v.v[0], (int)v.v[1], (int)v.v[2], (int)v.v[3]};
  }

  SF_DEVICE int pair(int place) const { return SF_DIRECT ? place : load_fresh(order + place); }
};

// A tile of the output: a block of up to `block_rows` rows by one of `columns` tiles of columns. Tiles of an expert are numbered together,
// blocks first, so that those that share weights follow each other; with `together` so many blocks take all columns before others do, so that
// what runs side by side also shares rows of x.
template <int block_rows, int columns, int together = 0> struct ExpertTile {
  Group group;
  int block, blocks, column;  // of the expert

  SF_DEVICE ExpertTile(const Routing& routing, int index) {
    group = routing.group(index / columns);
    blocks = max(1, (group.rows + block_rows - 1) / block_rows);
    const int place = index - group.first_block * columns;
    if constexpr (together == 0) {
      block = place % blocks;
      column = place / blocks;
    } else {
      const int first = place / (together * columns) * together, within = place - first * columns, width = min(together, blocks - first);
      column = within / width;
      block = first + within - column * width;
    }
  }

  SF_DEVICE int expert() const { return group.expert; }
  SF_DEVICE int start() const { return group.first_place + block * block_rows; }
  SF_DEVICE int rows() const { return min(block_rows, group.rows - block * block_rows); }
};
