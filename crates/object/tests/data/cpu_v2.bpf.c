// clang: -mcpu=v2
#include "cpu.h"
