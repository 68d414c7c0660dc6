// clang: -mcpu=v2
// also: clang-14 clang-16
#include "cpu.h"
