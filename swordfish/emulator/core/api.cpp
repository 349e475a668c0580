// The C interface that Python loads with ctypes.
#include "core.hpp"

using namespace sf;

// The text of the results is made without iostreams: they would write numbers by the locale of the process.
static void quote(std::string& o, const std::string& s) {
  o += '"';
  for (char ch : s) {
    if (ch == '"' || ch == '\\') o += '\\', o += ch;
    else if (ch == '\n') o += "\\n";
    else o += ch;
  }
  o += '"';
}

template <class N> static void field(std::string& o, const char* name, N v) { o += ",\"", o += name, o += "\":", o += std::to_string(v); }

template <class V> static void list(std::string& o, const V& v) {
  o += '[';
  for (size_t k = 0; k < v.size(); ++k) o += k ? "," : "", o += std::to_string(v[k]);
  o += ']';
}

extern "C" {

int sf_op_count() { return int(op_table().size()); }
const char* sf_op_name(int k) { return op_table()[k].first.c_str(); }

void* sf_new() { return new Machine; }
void sf_free(void* p) { delete static_cast<Machine*>(p); }

void sf_program(void* p, int n, const int32_t* ops, const int32_t* starts, int n_operands, const int32_t* operands, const int32_t* guards,
                const int32_t* flags, const int32_t* mods, const int64_t* imms, const int32_t* lines, int n_const, const uint8_t* consts,
                int n_sregs, const int32_t* sregs, int reg_bytes, int local_bytes, int smem_bytes) {
  Machine& m = *static_cast<Machine*>(p);
  m.operands.assign(operands, operands + n_operands);
  m.consts.assign(consts, consts + n_const);
  m.code.resize(size_t(n));
  for (int k = 0; k < n; ++k) {
    Insn& i = m.code[k];
    i.fn = op_table()[ops[k]].second;
    i.o = m.operands.data() + starts[k];
    i.n = (k + 1 < n ? starts[k + 1] : n_operands) - starts[k];
    i.guard = guards[k];
    i.guard_negated = flags[k] & 1, i.sync = flags[k] >> 1 & 3, i.copy = flags[k] >> 3 & 1, i.cls = uint8_t(flags[k] >> 4);
    for (int j = 0; j < 6; ++j) i.m[j] = mods[6 * k + j];
    i.imm = imms[k], i.line = lines[k], i.pc = k;
  }
  for (int k = 0; k < n_sregs; ++k) m.sregs.emplace_back(sregs[2 * k], sregs[2 * k + 1]);
  m.reg_bytes = reg_bytes, m.local_bytes = local_bytes, m.smem_bytes = smem_bytes;
}

void sf_region(void* p, uint64_t lo, uint64_t bytes, int writable, const char* name) {
  static_cast<Machine*>(p)->regions.push_back({lo, lo + bytes, writable != 0, name});
}

// params must stay valid during the run: kernels take its address
void sf_launch(void* p, const int32_t* grid, const int32_t* block, const int32_t* cluster, int dyn_smem, int arch, int policy, int warp_policy,
               int checks, uint64_t seed, uint64_t step_limit, const uint8_t* params, int param_bytes) {
  Machine& m = *static_cast<Machine*>(p);
  for (int d = 0; d < 3; ++d) m.grid[d] = grid[d], m.block[d] = block[d], m.cluster[d] = cluster[d];
  m.dyn_smem = uint32_t(dyn_smem), m.arch = arch, m.policy = Policy(policy), m.warp_policy = WarpPolicy(warp_policy), m.checks = checks != 0, m.tcgen05_fences = (checks & 2) != 0;
  m.cluster_start = (checks & 4) != 0;
  m.rng = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  for (int k = 0; k < 4; ++k) m.random();
  m.step_limit = step_limit;
  m.params.resize(size_t(param_bytes) + 128);
  std::memcpy(m.param(), params, size_t(param_bytes));
  m.regions.push_back({reinterpret_cast<uint64_t>(m.params.data()), reinterpret_cast<uint64_t>(m.params.data()) + m.params.size(), false, "kernel parameters"});
}

// fields: elem_bits, swizzle, interleave, nan_fill, is_float, dtype; returns the index of the map
int sf_tensor_map(void* p, uint64_t base, int rank, const int32_t* fields, const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                  const uint32_t* estride) {
  Machine& m = *static_cast<Machine*>(p);
  TensorMapInfo t;
  t.base = base, t.rank = rank;
  t.elem_bits = fields[0], t.swizzle = fields[1], t.interleave = fields[2], t.nan_fill = fields[3] != 0, t.is_float = fields[4] != 0, t.dtype = fields[5];
  for (int d = 0; d < rank; ++d) t.dims[d] = dims[d], t.strides[d] = strides[d], t.box[d] = box[d], t.estride[d] = estride[d];
  m.maps.push_back(t);
  return int(m.maps.size()) - 1;
}

void sf_run(void* p) { static_cast<Machine*>(p)->run(); }

// The results as JSON; the string lives until the next call on this thread.
const char* sf_results(void* p) {
  Machine& m = *static_cast<Machine*>(p);
  static thread_local std::string o;
  o = "{\"instructions\":" + std::to_string(m.instructions);
  field(o, "steps", m.now), field(o, "async_ops", m.async_ops);
  field(o, "tma_load_bytes", m.tma_load_bytes), field(o, "tma_store_bytes", m.tma_store_bytes);
  o += ",\"waits_by_warp\":";
  list(o, m.waits_by_warp);
  o += ",\"class_by_warp\":[";
  for (size_t k = 0; k < m.class_by_warp.size(); ++k) o += k ? "," : "", list(o, m.class_by_warp[k]);
  o += "],\"findings\":[";
  for (size_t k = 0; k < m.findings.size(); ++k) {
    const Finding& f = m.findings[k];
    o += k ? ",{\"kind\":" : "{\"kind\":";
    quote(o, f.kind);
    o += ",\"text\":";
    quote(o, f.text);
    field(o, "line", f.pc >= 0 && size_t(f.pc) < m.code.size() ? m.code[f.pc].line : 0);
    field(o, "cta", f.cta), field(o, "warp", f.warp), field(o, "lane", f.lane), field(o, "address", f.address), field(o, "count", f.count);
    o += '}';
  }
  o += "],\"released_early\":";
  o += m.released_early ? "true" : "false";
  o += ",\"regions\":[";
  auto line = [&](int pc) { return pc >= 0 && size_t(pc) < m.code.size() ? m.code[pc].line : 0; };
  for (size_t k = 0; k < m.regions.size(); ++k) {
    const Region& r = m.regions[k];
    o += k ? ",{\"name\":" : "{\"name\":";
    quote(o, r.name);
    field(o, "lo", r.lo), field(o, "hi", r.hi), field(o, "read", r.touched[0]), field(o, "written", r.touched[1]);
    field(o, "early_read", line(r.early[0])), field(o, "early_write", line(r.early[1]));
    o += '}';
  }
  o += "],\"lines\":[";
  bool first = true;
  for (size_t k = 0; k < m.stats.size(); ++k) {
    const LineStats& s = m.stats[k];
    if (!s.accesses) continue;
    o += first ? "" : ",", first = false;
    list(o, std::vector<uint64_t>{uint64_t(m.code[k].line), s.executed, s.accesses, s.wavefronts, s.ideal});
  }
  o += "]}";
  return o.c_str();
}
}
