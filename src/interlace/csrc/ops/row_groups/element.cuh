// Element: the element type of argument x.
#pragma once
#include "generated/arguments.cuh"

template <class P> struct ElementOf;
template <class T> struct ElementOf<const T*> {
  typedef T Type;
};
typedef ElementOf<decltype(Arguments::x)>::Type Element;
