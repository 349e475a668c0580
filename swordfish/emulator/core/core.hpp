// State of the emulated machine and the interface between the interpreter and the instruction families.
//
// One launch = one Machine. Clusters run one after another; all CTAs of a cluster live together. A warp holds its
// registers as rows of 32 lanes and one or more fragments (lane sets with a common program counter).
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace sf {

constexpr int LANES = 32;
constexpr uint32_t FULL = 0xffffffffu;
constexpr uint32_t SMEM_BASE = 0x400;              // first user byte of a CTA's shared window
constexpr uint64_t SHARED_WINDOW = 1ull << 48;     // generic address of the cluster's shared window
constexpr uint64_t LOCAL_WINDOW = 1ull << 49;      // generic address of a thread's local memory
constexpr int ASYNC_AGENTS = 64;                   // vector-clock slots shared by asynchronous operations
using Mask = uint32_t;

struct Insn;
struct Ctx;
struct Warp;
struct Cta;
struct Cluster;
struct Machine;
struct AsyncOp;

// What the interpreter does after a handler: go on, leave the program counter as the handler set it, or suspend the
// fragment on the Wait that the handler stored with Ctx::block (the instruction is not executed again).
enum class Flow : uint8_t { Next, Jump, Block };
using Handler = Flow (*)(Ctx&, const Insn&);

enum Sync : uint8_t { SYNC_NONE = 0, SYNC_ALIGNED = 1, SYNC_MEMBERS = 2 };

struct Insn {
  Handler fn;
  const int32_t* o;     // operands: byte offset into the warp's registers, or ~offset into the constant rows
  int32_t n;            // number of operands
  int32_t guard;        // byte offset of the guard predicate, -1 for none
  bool guard_negated;
  uint8_t sync;         // Sync: lanes that must be together before the instruction runs
  uint8_t copy;         // 1: a plain register copy or asynchronous MMA, which may touch registers in flight
  uint8_t cls;          // class for the instruction counts
  int32_t m[6];         // modifiers, meaning set by the decoder of the family
  int64_t imm;          // address offset or another immediate
  int32_t line;         // line in the PTX text
  int32_t pc;
};

// Happens-before knowledge: vc = accesses known to be ordered before now; pvc = generic-proxy accesses that a
// proxy fence has made visible to the asynchronous proxy.
struct Clock {
  std::vector<uint32_t> vc, pvc;
  void init(int n) { vc.assign(n, 0), pvc.assign(n, 0); }
  void join(const Clock& k);
};

// Who touches memory: a warp (generic proxy) or an asynchronous operation.
struct Actor {
  int agent = 0;
  uint32_t clk = 0;
  const Clock* know = nullptr;
  bool async_proxy = false;
  int pc = 0, warp = 0, lane = 0;   // of the issuing instruction, for reports
  bool early = false;               // issued before its CTA has waited for the kernels before this one
};

enum Access : uint8_t { READ = 0, WRITE = 1, ATOMIC = 2, STRONG_READ = 3, STRONG_WRITE = 4 };

// An access to some bytes of a 16-byte cell of shared memory. flags: 1 strong, 2 asynchronous proxy
struct Mark { uint32_t clk; uint32_t pc : 24, flags : 8; uint16_t agent, bytes; };
struct alignas(64) Cell { uint16_t init; uint8_t n_writes, n_reads; Mark w[2], r[3]; };

struct Mbarrier {
  bool live = false, fenced = false;   // fenced: the init was made visible to the asynchronous proxy
  uint32_t expected = 0, pending = 0, phase = 0;   // phase counts completed phases
  int64_t tx = 0;
  int init_pc = 0, init_agent = 0; uint32_t init_clk = 0;
  Clock arriving, done;
};

struct NamedBarrier { int arrived = 0, expected = 0; uint64_t generation = 0; Clock arriving, done; uint32_t red = 0, red_done = 0; uint32_t red_and = 1, red_or = 0; bool all_done = false, any_done = false; };

struct Finding { std::string kind, text; int pc, cta, warp, lane; uint64_t address; int64_t count; };

// A group of asynchronous operations (cp.async, bulk, wgmma): complete when `open` reaches zero.
struct Group { int open = 0; Clock clk; };
using GroupRef = std::shared_ptr<Group>;

struct Cta {
  Cluster* cl = nullptr;
  int rank = 0, id[3] = {0, 0, 0}, linear = 0;
  int live_warps = 0, n_warps = 0;
  bool exited = false;
  bool waited = false;                 // a warp has passed griddepcontrol.wait
  std::vector<uint8_t> smem;           // bytes from SMEM_BASE
  std::vector<Cell> shadow;
  std::map<uint32_t, Mbarrier> mbar;   // by offset in the window
  NamedBarrier bar[16];
  std::vector<Warp*> warps;
  std::shared_ptr<void> ext[4];        // state of other families: ext[0] is tensor memory
};

// A fragment that cannot go on. poll returns true once the condition holds, after doing what completes the
// instruction (acquiring clocks, writing a result); describe is used by deadlock reports.
struct WaitKind {
  bool (*poll)(Ctx&, const Insn&);
  std::string (*describe)(Ctx&, const Insn&);
  bool timed;                          // may also end with a negative result (try_wait)
  void (*give_up)(Ctx&, const Insn&);  // that negative result
  bool again = false;                  // the instruction then runs (again), instead of being complete
};

enum class FragState : uint8_t { Run, Converge, WarpSync, Wait };
struct Frag {
  Mask mask; int32_t pc;
  FragState state = FragState::Run;
  const WaitKind* wait = nullptr;
  uint64_t polled = 0, since = 0, w[4] = {0, 0, 0, 0};   // w: arguments of the wait
  uint64_t wake_at = 0;
  std::vector<int32_t> stack;           // return addresses
};

struct Warp {
  Cta* cta = nullptr;
  int id = 0, agent = 0;               // id in the CTA; agent = vector-clock slot
  Mask alive = 0;
  std::vector<Frag> frags;
  size_t cur = 0;
  uint8_t* regs = nullptr;
  std::vector<uint8_t> store, local;   // register file; local memory, lane-major
  Clock clock, relaxed, fenced;        // relaxed: seen by relaxed loads, joined at a fence; fenced: state at the last fence
  std::vector<int32_t> busy;           // per 128-byte register row: operations in flight that will write it
  int n_busy = 0;
  std::vector<uint32_t> taint;         // per row: number of the wgmma whose result it holds
  uint32_t mma_issued = 0, mma_waited = 0;
  GroupRef cp_open; std::deque<GroupRef> cp_groups;
  GroupRef cp_tick; std::vector<GroupRef> cp_ticks;   // cp.async since the last cp.async.mbarrier.arrive, and before
  std::map<int, GroupRef> bulk_open; std::map<int, std::deque<GroupRef>> bulk_groups;   // by lane
  GroupRef mma_open; std::deque<std::pair<GroupRef, uint32_t>> mma_groups;
  std::vector<uint64_t> counts;        // executed instructions by class
  uint64_t barrier_waits = 0;
  std::shared_ptr<void> ext[4];
};

struct Cluster {
  Machine* m = nullptr;
  int index = 0, size = 1;
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<std::unique_ptr<Warp>> warps;
  int bar_arrived = 0; uint64_t bar_generation = 0;   // barrier.cluster, counted in warps
  Clock bar_arriving, bar_done;
  std::vector<std::unique_ptr<AsyncOp>> queue;
  std::vector<uint32_t> agent_clk;     // clock of each asynchronous slot
  uint64_t next_agent = 0;
  std::unordered_map<uint64_t, Clock> flags;   // release/acquire through memory locations
  std::shared_ptr<void> ext[4];
};

// An operation that executes after its issue. Operations of one channel run in order; others in any order.
struct AsyncOp {
  std::function<void(Machine&, AsyncOp&)> run;
  uint64_t seq = 0, due = 0;
  int64_t channel = -1;
  Clock clk;                           // knowledge at issue, plus the operation's own event
  Actor actor;                         // filled by Machine::issue
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  GroupRef group, tick;                // told when the operation is complete
  std::vector<GroupRef> after;         // must be complete before this one runs
  std::vector<int32_t> rows;           // destination register rows, busy until then
  const char* what = "";
};

// Global memory that the kernel may touch. [0] reads, [1] writes: whether there were any, and the first instruction that came early, or -1.
struct Region { uint64_t lo, hi; bool writable; std::string name; bool touched[2] = {false, false}; int early[2] = {-1, -1}; };

// One dimension-ordered tensor map, decoded. Sizes in elements except strides and elem_bits.
struct TensorMapInfo {
  uint64_t base = 0; int rank = 0, elem_bits = 16, swizzle = 0, interleave = 0;
  bool nan_fill = false, is_float = true; int dtype = 0;
  uint64_t dims[5] = {1, 1, 1, 1, 1}, strides[5] = {0, 0, 0, 0, 0};   // strides[0] unused (elem_bits / 8)
  uint32_t box[5] = {1, 1, 1, 1, 1}, estride[5] = {1, 1, 1, 1, 1};
};

struct LineStats { uint64_t executed = 0, wavefronts = 0, ideal = 0, accesses = 0; };

enum class Policy : uint8_t { Late, Eager, Mixed, Heavy };
enum class WarpPolicy : uint8_t { Random, Greedy, RoundRobin };

struct Machine {
  // program
  std::vector<Insn> code;
  std::vector<int32_t> operands;
  std::vector<uint8_t> consts;
  int reg_bytes = 0, local_bytes = 0, smem_bytes = 0;
  std::vector<std::pair<int32_t, int32_t>> sregs;    // (special register number, byte offset) preloaded per warp
  // launch
  int grid[3], block[3], cluster[3];
  int arch = 90; uint32_t dyn_smem = 0;
  std::vector<uint8_t> params;                // with room to align; kernels see param()
  uint8_t* param() { return params.data() + (-reinterpret_cast<uint64_t>(params.data()) & 63); }
  std::vector<Region> regions; size_t last_region = 0;
  std::vector<TensorMapInfo> maps;
  // schedule
  Policy policy = Policy::Mixed; WarpPolicy warp_policy = WarpPolicy::Random;
  bool checks = true, tcgen05_fences = false;   // tcgen05_fences: a missing tcgen05.fence is a finding
  bool cluster_start = false;                   // and access to a CTA that may not have started
  uint64_t rng = 1, now = 0, step_limit = 0, events = 1, progress = 0, seq = 0;
  int n_agents = 0, n_warps = 0;
  int next_cluster = 0, n_clusters = 0;
  Cluster* cl = nullptr;
  // results
  std::vector<Finding> findings;
  std::unordered_map<std::string, size_t> finding_index;
  bool stop = false;
  std::vector<LineStats> stats;
  std::vector<std::vector<uint64_t>> class_by_warp;    // [warp in CTA][class], summed over CTAs
  std::vector<uint64_t> waits_by_warp;
  bool released_early = false;         // a CTA let dependent kernels start, or ended, before it had waited
  uint64_t instructions = 0, tma_load_bytes = 0, tma_store_bytes = 0, async_ops = 0;

  uint64_t random() { rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17; return rng * 0x2545F4914F6CDD1Dull; }
  uint32_t below(uint32_t n) { return uint32_t((random() >> 32) * n >> 32); }

  void run();
  int take_cluster();                                 // clusterlaunchcontrol: the next cluster that has not started, or -1
  // Queue an operation issued by `c`. Its actor and clock are set here: it knows what the issuing warp knows.
  AsyncOp& issue(Ctx& c, const Insn& i, const char* what, std::function<void(Machine&, AsyncOp&)> fn);
  void complete(AsyncOp& op);                         // group accounting and register release, after op.run
  bool run_async(bool idle);                          // execute what is due (or one, when idle); true if any ran
  bool force_channel(int64_t channel, const AsyncOp* upto);   // false: something in it is still held back
  bool force_row(Warp& w, int32_t row);               // finish what is about to write a register row; false: not possible yet
  void finding(const char* kind, const std::string& text, const Actor& a, const Cta* cta, uint64_t address, bool fatal = false);
  void wake() { ++events; }

  // memory.cpp: host pointer of [addr, addr+n) in global memory or null after a finding
  uint8_t* global(uint64_t addr, uint32_t n, bool write, const Actor& a, const Cta* cta);
  // shared.cpp: checked pointer to shared bytes of window address `addr` (rank << 24 | offset), or null after a finding
  uint8_t* shared(Cta& from, uint32_t addr, uint32_t n, Access kind, const Actor& a);
  Cta* shared_owner(Cta& from, uint32_t addr) const;
  Mbarrier* barrier_at(Cta& from, uint32_t addr, const Actor& a, const char* what);
  // barrier.cpp: arrive (count), and transaction bytes, on an mbarrier; clk = what is released, or null
  void mbar_arrive(Mbarrier& b, uint32_t count, int64_t tx_done, const Clock* clk, const Actor& a, const Cta* cta, uint32_t addr);
  void mbar_expect(Mbarrier& b, int64_t bytes, const Actor& a, const Cta* cta, uint32_t addr);
  // tensormap.cpp: the map whose 128 bytes lie at `addr`
  const TensorMapInfo* tensor_map(uint64_t addr, const Actor& a, const Cta* cta, TensorMapInfo& scratch);
};

// What a handler sees: `mask` is the set of lanes that execute the instruction.
struct Ctx {
  Machine& m; Warp& w; Cta& cta; Frag* frag; Mask mask;
  uint8_t* row(int32_t off) const { return off >= 0 ? w.regs + off : m.consts.data() + ~off; }
  uint32_t* r32(int32_t off) const { return reinterpret_cast<uint32_t*>(row(off)); }
  uint64_t* r64(int32_t off) const { return reinterpret_cast<uint64_t*>(row(off)); }
  Mask& pred(int32_t off) const { return *reinterpret_cast<Mask*>(row(off)); }
  void set_pred(int32_t off, Mask v) const { Mask& p = pred(off); p = (p & ~mask) | (v & mask); }
  int first() const { return __builtin_ctz(mask); }
  Actor actor(const Insn& i, int lane) const {
    return Actor{w.agent, w.clock.vc[w.agent], &w.clock, false, i.pc, w.id, lane, !cta.waited};
  }
  Flow block(const WaitKind& k, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) const {
    frag->wait = &k, frag->w[0] = a, frag->w[1] = b, frag->w[2] = c, frag->w[3] = d;
    return Flow::Block;
  }
  void release_tick() const { ++w.clock.vc[w.agent]; }   // after a release: later accesses are new events
};

// Instruction families register their handlers by name; the Python decoders refer to these names.
struct Registrar { Registrar(const std::string& name, Handler h); };
int find_op(const std::string& name);
const std::vector<std::pair<std::string, Handler>>& op_table();
#define SF_CAT2(a, b) a##b
#define SF_CAT(a, b) SF_CAT2(a, b)
#define SF_OP(name) \
  static ::sf::Flow SF_CAT(op_, __LINE__)(::sf::Ctx&, const ::sf::Insn&); \
  static ::sf::Registrar SF_CAT(reg_, __LINE__)(name, SF_CAT(op_, __LINE__)); \
  static ::sf::Flow SF_CAT(op_, __LINE__)([[maybe_unused]] ::sf::Ctx& c, [[maybe_unused]] const ::sf::Insn& i)

template <class F> inline void each_lane(Mask m, F f) { for (; m; m &= m - 1) f(__builtin_ctz(m)); }

std::string hex(uint64_t v);

// Hooks for what lives in other files and may be absent for an architecture.
using TensorMapDecoder = bool (*)(const uint8_t* bytes128, TensorMapInfo& out);
extern TensorMapDecoder hardware_tensor_map;          // the 64-byte form that CuTe's make_tiled_tma_atom writes
using RowHook = void (*)(Machine&, Warp&, int32_t row);
extern RowHook row_used;                              // a row kept busy by a finished tcgen05.ld is used for the first time
using CtaHook = void (*)(Machine&, Cta&);
void on_cta_exit(CtaHook hook);                       // e.g. tensor memory that was not freed
const std::vector<CtaHook>& cta_exit_hooks();

}  // namespace sf
