// `offsetof`, which NVRTC lacks without its headers.
#pragma once

#ifndef offsetof
#define offsetof(type, field) __INTADDR__(&(((type*)0)->field))
#endif
