// tcgen05.mma: D = A x B (+ D), A from shared or tensor memory, B from shared memory, D in tensor memory.
#include <cmath>

#include "tcgen05_desc.hpp"
#include "tmem.hpp"

namespace sf {

struct MmaArgs {
  uint32_t d, idesc;
  uint64_t a, b;
  Kind kind;
  int group;
  bool a_in_tmem, ws, accumulate;
  float scale_d = 1.0f;
  uint32_t disabled[8] = {0};
};

// Where the accumulator's element (row of this CTA, column) lies; letters as in the PTX ISA (9.7.16.10.5).
struct DataPath {
  int rows, n;           // rows of D held by a CTA; columns of the instruction
  char letter;
  int lane(int row, int col) const {
    switch (letter) {
      case 'B': case 'E': return row + (col >= n / 2 ? 64 : 0);
      case 'F': return (row / 16) * 32 + row % 16;
      case 'G': return row + col / (n / 4) * 32;
      default: return row;
    }
  }
  int column(int col) const { return letter == 'B' || letter == 'E' ? col % (n / 2) : letter == 'G' ? col % (n / 4) : col; }
  int columns() const { return letter == 'B' || letter == 'E' ? n / 2 : letter == 'G' ? n / 4 : n; }
  // Rectangles of lanes that the layout covers.
  std::vector<std::pair<int, int>> lanes() const {
    if (letter == 'F') return {{0, 16}, {32, 16}, {64, 16}, {96, 16}};
    return {{0, TMEM_LANES}};
  }
};

static DataPath data_path(const InstrDesc& d, int group, bool ws) {
  if (group == 2) return {d.m / 2, d.n, d.m == 256 ? 'A' : 'B'};
  if (d.m == 128) return {128, d.n, 'D'};
  if (d.m == 64) return {64, d.n, ws ? 'E' : 'F'};
  return {32, d.n, 'G'};
}

// Operand A from tensor memory: 32 bytes of K in 8 columns of the row's lane.
static bool read_a_tmem(Machine& m, Cta& cta, const Actor& actor, uint32_t addr, const DataPath& path, uint8_t* out) {
  const int col = int(addr & 0xffff), lane0 = int(addr >> 16);
  if (path.letter == 'B' || lane0) {
    m.finding("tcgen05 usage", path.letter == 'B' ? "operand A in tensor memory with M=128 and cta_group::2 is not modelled"
                                                  : "operand A in tensor memory must start at lane 0", actor, &cta, addr, true);
    return false;
  }
  const int cols = K_BYTES / 4;
  const bool scattered = path.letter == 'F';
  if (scattered) {
    for (auto [lane, n] : path.lanes())
      if (!tmem_access(m, cta, actor, TmemRect{lane, n, col, cols}, false)) return false;
  } else if (!tmem_access(m, cta, actor, TmemRect{0, path.rows, col, cols}, false)) {
    return false;
  }
  Tmem& t = tmem(cta);
  for (int r = 0; r < path.rows; ++r) std::memcpy(out + r * K_BYTES, &t.at(scattered ? path.lane(r, 0) : r, col), K_BYTES);
  return true;
}

static uint16_t to_half(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  const uint16_t sign = uint16_t(b >> 16 & 0x8000);
  if (std::isnan(x)) return 0x7fff;
  const float y = std::fabs(x);
  if (y >= 65520.0f) return sign | 0x7c00;
  if (y < 0x1p-14f) return sign | uint16_t(std::nearbyint(y * 0x1p24f));
  std::memcpy(&b, &y, 4);
  b += 0xfff + (b >> 13 & 1);
  return sign | uint16_t((b >> 13) - (112 << 10));
}

// The products of one instruction are summed exactly (in double) and added to D with one rounding to nearest.
// Integer sums wrap or saturate at 32 bits.
static void multiply(Tmem& t, const MmaArgs& g, const InstrDesc& d, const DataPath& path, int col0, const float* a, const float* bt,
                     int depth, const uint32_t* disabled) {
  std::vector<double> sum(static_cast<size_t>(d.n));
  for (int r = 0; r < path.rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int k = 0; k < depth; ++k) {
      const double x = a[r * depth + k];
      const float* b = bt + k * d.n;
      double* s = sum.data();
      for (int n = 0; n < d.n; ++n) s[n] += x * b[n];
    }
    for (int n = 0; n < d.n; ++n) {
      const int lane = path.lane(r, n);
      if (disabled[lane / 32] >> (lane % 32) & 1) continue;
      uint32_t& w = t.at(lane, col0 + path.column(n));
      if (d.d_type == 2) {
        const double total = sum[n] + (g.accumulate ? double(int32_t(w)) : 0.0);
        w = d.saturate ? uint32_t(int32_t(std::fmin(std::fmax(total, -2147483648.0), 2147483647.0))) : uint32_t(int64_t(total));
        continue;
      }
      float old = 0.0f;
      if (g.accumulate && d.d_type == 1) std::memcpy(&old, &w, 4);
      else if (g.accumulate) to_float(reinterpret_cast<const uint8_t*>(&w), 1, Kind::F16, 0, false, &old);
      const float total = float(sum[n] + double(old) * g.scale_d);
      if (d.d_type == 1) std::memcpy(&w, &total, 4);
      else w = to_half(total);
    }
  }
}

static void run_mma(Machine& m, AsyncOp& self, const Actor& tmem_side, const MmaArgs& g) {
  const InstrDesc d(g.idesc);
  const Actor actor = self.actor;
  const std::string wrong = check_shape(d, g.kind, g.group, g.ws);
  if (!wrong.empty()) {
    m.finding("tcgen05 descriptor", "instruction descriptor " + hex(g.idesc) + ": " + wrong, actor, self.cta, 0, true);
    return;
  }
  Cta* cta[2] = {self.cta, self.cta};
  if (g.group == 2) {
    cta[0] = self.cta->rank & 1 ? pair_peer(*self.cta) : self.cta;
    cta[1] = pair_peer(*cta[0]);
  }
  const DataPath path = data_path(d, g.group, g.ws);
  const int elem = elem_bytes(g.kind), depth = K_BYTES / elem;
  std::vector<uint8_t> raw_a(size_t(g.group) * path.rows * K_BYTES), raw_b(size_t(d.n) * K_BYTES);
  for (int k = 0; k < g.group; ++k) {
    uint8_t* a = raw_a.data() + size_t(k) * path.rows * K_BYTES;
    if (g.a_in_tmem ? !read_a_tmem(m, *cta[k], tmem_side, uint32_t(g.a), path, a)
                    : !read_operand(m, *cta[k], actor, g.a, d.a_mn_major, path.rows, elem, a)) return;
    const int cols = d.n / g.group;
    if (!read_operand(m, *cta[k], actor, g.b, d.b_mn_major, cols, elem, raw_b.data() + size_t(k) * cols * K_BYTES)) return;
  }
  std::vector<float> b(size_t(d.n) * depth), bt(b.size()), a(size_t(path.rows) * depth);
  to_float(raw_b.data(), d.n * depth, g.kind, d.b_type, d.negate_b, b.data());
  for (int n = 0; n < d.n; ++n)
    for (int k = 0; k < depth; ++k) bt[size_t(k) * d.n + n] = b[size_t(n) * depth + k];
  const int col0 = int(g.d & 0xffff);
  for (int k = 0; k < g.group; ++k) {
    for (auto [lane, lanes] : path.lanes()) {
      const TmemRect r{lane, lanes, col0, path.columns()};
      if (g.accumulate && !tmem_access(m, *cta[k], tmem_side, r, false)) return;
      if (!tmem_access(m, *cta[k], tmem_side, r, true)) return;
    }
    to_float(raw_a.data() + size_t(k) * path.rows * K_BYTES, path.rows * depth, g.kind, d.a_type, d.negate_a, a.data());
    multiply(tmem(*cta[k]), g, d, path, col0, a.data(), bt.data(), depth, g.disabled + 4 * k);
  }
}

// Operands: D address, A (descriptor or address), B descriptor, instruction descriptor, accumulate predicate, then the
// disable-output-lane registers. m: kind, cta_group, A in tensor memory, ws, scale-input-d exponent, lane registers.
SF_OP("tcgen05.mma") {
  if (!check_group(c.m, c.cta, c.actor(i, c.first()), i.m[1])) return Flow::Next;
  const Mask accumulate = c.pred(i.o[4]);
  each_lane(c.mask, [&](int lane) {
    MmaArgs g;
    g.kind = Kind(i.m[0]), g.group = i.m[1], g.a_in_tmem = i.m[2], g.ws = i.m[3];
    g.d = c.r32(i.o[0])[lane];
    g.a = g.a_in_tmem ? c.r32(i.o[1])[lane] : c.r64(i.o[1])[lane];
    g.b = c.r64(i.o[2])[lane], g.idesc = c.r32(i.o[3])[lane];
    g.accumulate = accumulate >> lane & 1;
    g.scale_d = std::ldexp(1.0f, -i.m[4]);
    for (int k = 0; k < i.m[5]; ++k) g.disabled[k] = c.r32(i.o[5 + k])[lane];
    issue_in_pipe(c, i, lane, "tcgen05.mma", [g](Machine& m, AsyncOp& self, const Actor& a) { run_mma(m, self, a, g); });
  });
  return Flow::Next;
}

}  // namespace sf
