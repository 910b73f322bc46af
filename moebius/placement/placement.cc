// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/placement.h"
