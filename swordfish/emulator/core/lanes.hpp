// Element-wise handlers: one functor, one loop over 32 lanes, for every PTX type.
#pragma once
#include "core.hpp"
#include "fp.hpp"

namespace sf {

template <class T> struct Lane { using Store = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>; };
template <class T> inline T take(typename Lane<T>::Store s) {
  T v;
  std::memcpy(&v, &s, sizeof(T));
  return v;
}
template <class T> inline typename Lane<T>::Store give(T v) {
  typename Lane<T>::Store s = 0;
  std::memcpy(&s, &v, sizeof(T));
  return s;
}
template <class T> inline typename Lane<T>::Store* lane_row(Ctx& c, int32_t off) { return reinterpret_cast<typename Lane<T>::Store*>(c.row(off)); }

template <class R, class A, class F> inline Flow map1(Ctx& c, const Insn& i, F f) {
  auto* d = lane_row<R>(c, i.o[0]);
  const auto* a = lane_row<A>(c, i.o[1]);
  if (c.mask == FULL) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; ++l) d[l] = give<R>(f(take<A>(a[l])));
  } else {
    each_lane(c.mask, [&](int l) { d[l] = give<R>(f(take<A>(a[l]))); });
  }
  return Flow::Next;
}
template <class R, class A, class B, class F> inline Flow map2(Ctx& c, const Insn& i, F f) {
  auto* d = lane_row<R>(c, i.o[0]);
  const auto* a = lane_row<A>(c, i.o[1]);
  const auto* b = lane_row<B>(c, i.o[2]);
  if (c.mask == FULL) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; ++l) d[l] = give<R>(f(take<A>(a[l]), take<B>(b[l])));
  } else {
    each_lane(c.mask, [&](int l) { d[l] = give<R>(f(take<A>(a[l]), take<B>(b[l]))); });
  }
  return Flow::Next;
}
template <class R, class A, class B, class C, class F> inline Flow map3(Ctx& c, const Insn& i, F f) {
  auto* d = lane_row<R>(c, i.o[0]);
  const auto* a = lane_row<A>(c, i.o[1]);
  const auto* b = lane_row<B>(c, i.o[2]);
  const auto* e = lane_row<C>(c, i.o[3]);
  if (c.mask == FULL) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; ++l) d[l] = give<R>(f(take<A>(a[l]), take<B>(b[l]), take<C>(e[l])));
  } else {
    each_lane(c.mask, [&](int l) { d[l] = give<R>(f(take<A>(a[l]), take<B>(b[l]), take<C>(e[l]))); });
  }
  return Flow::Next;
}

template <class T> inline const char* type_name();
template <> inline const char* type_name<uint16_t>() { return ".u16"; }
template <> inline const char* type_name<int16_t>() { return ".s16"; }
template <> inline const char* type_name<uint32_t>() { return ".u32"; }
template <> inline const char* type_name<int32_t>() { return ".s32"; }
template <> inline const char* type_name<uint64_t>() { return ".u64"; }
template <> inline const char* type_name<int64_t>() { return ".s64"; }
template <> inline const char* type_name<float>() { return ".f32"; }
template <> inline const char* type_name<double>() { return ".f64"; }

}  // namespace sf
