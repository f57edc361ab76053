// Element type of an argument.
#pragma once

template <class P> struct ElementOf;
template <class T> struct ElementOf<const T*> {
  typedef T Type;
};
typedef ElementOf<decltype(Arguments::x)>::Type Element;
