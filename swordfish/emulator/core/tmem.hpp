// Tensor memory of a CTA: 128 lanes x 512 columns of 32 bits, allocated by column, with a shadow for the checkers.
#pragma once
#include <array>

#include "core.hpp"

namespace sf {

constexpr int TMEM_LANES = 128, TMEM_COLS = 512;
constexpr int TMEM_BAND = 16;                                     // lanes that share a shadow cell
constexpr int TMEM_BANDS = TMEM_LANES / TMEM_BAND;

struct TmemMark { uint32_t clk = 0; int32_t pc = -1; uint16_t agent = 0; };
struct TmemCell { TmemMark write, read[3]; uint16_t init = 0; uint8_t reads = 0; };   // init: one bit per lane

struct Tmem {
  std::vector<uint32_t> data = std::vector<uint32_t>(TMEM_LANES * TMEM_COLS, 0x7fffffffu);   // NaN poison
  std::vector<TmemCell> cells = std::vector<TmemCell>(TMEM_BANDS * TMEM_COLS);
  std::array<uint8_t, TMEM_COLS> owned{};                          // 1: allocated
  bool relinquished = false;
  uint8_t group = 0;                                               // cta_group of the kernel, 0 until the first use
  int32_t alloc_pc = 0;
  int waiting = 0, granted = -1;                                   // cta_group::2: columns asked for; column given
  uint32_t& at(int lane, int col) { return data[lane * TMEM_COLS + col]; }
};

// A rectangle of tensor memory that an instruction touches.
struct TmemRect { int lane, lanes, col, cols; };

Tmem& tmem(Cta& cta);

// Check bounds, allocation, ordering and (for reads) initialisation of a rectangle, and record the access.
// False if the rectangle cannot be accessed at all.
bool tmem_access(Machine& m, Cta& cta, const Actor& a, const TmemRect& r, bool write);
// Make columns never-written again.
void tmem_poison(Tmem& t, int col, int cols);

// The clock of what one thread's tcgen05.mma, cp, shift and commit have done so far; these execute in order.
struct Pipe { Clock done; bool used = false; };
struct TmemLoad { Clock clk; std::vector<int32_t> rows; };   // a tcgen05.ld whose registers nobody has used yet
struct TcgenWarp {
  std::array<Pipe, LANES> pipe;
  GroupRef loads, stores;              // tcgen05.ld and st in flight
  std::unordered_map<int32_t, std::shared_ptr<TmemLoad>> unseen;   // by register row
  Clock pending;                       // ld and st that a wait has seen finish; published at once, or by fence::before_thread_sync
  Clock seen;                          // what the warp knew at its last fence::after_thread_sync
};
TcgenWarp& tcgen(Warp& w);

// What an operation knows of tensor memory. Usually all that its warp knows; with Machine::tcgen05_fences only what
// a fence::after_thread_sync came after, and the warp's own finished operations.
std::shared_ptr<Clock> tmem_knowledge(Ctx& c, const AsyncOp& op);
inline Actor tmem_actor(const AsyncOp& op, const std::shared_ptr<Clock>& know) {
  Actor a = op.actor;
  if (know) a.know = know.get();
  return a;
}

Cta* pair_peer(Cta& cta);              // the other CTA of the pair, null without one
bool check_group(Machine& m, Cta& cta, const Actor& a, int group);
// Queue an operation that executes in order with the thread's other mma, cp, shift and commit. `fn` also gets the actor
// for its accesses of tensor memory.
using PipeOp = std::function<void(Machine&, AsyncOp&, const Actor&)>;
void issue_in_pipe(Ctx& c, const Insn& i, int lane, const char* what, PipeOp fn);
constexpr int64_t TCGEN_CHANNEL = int64_t(1) << 40;
inline int64_t tcgen_channel(const Warp& w, int lane) { return TCGEN_CHANNEL + int64_t(w.agent) * LANES + lane; }

}  // namespace sf
