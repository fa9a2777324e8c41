/* Stands in for the driver's libnvidia-ml.so.1: two GPUs that say what is in a file, `number name value` a line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
static int gpus[2] = {0, 1};

static int said(const int *gpu, const char *name, double *value) {
  FILE *file = fopen(getenv("PRETENDED_NVML"), "r");
  char known[64];
  int number, found = NOT_SUPPORTED;
  double one;
  if (!file) return NOT_SUPPORTED;
  while (fscanf(file, "%d %63s %lf", &number, known, &one) == 3)
    if (number == *gpu && !strcmp(known, name)) { *value = one; found = SUCCESS; }
  fclose(file);
  return found;
}

#define ASK(type, name, into) do { double v = 0; int r = said(gpu, name, &v); *(into) = (type)v; return r; } while (0)

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result == NOT_SUPPORTED ? "Not Supported" : "?"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **gpu) { *gpu = &gpus[number]; return SUCCESS; }
int nvmlDeviceGetClockInfo(int *gpu, int kind, unsigned *mhz) { ASK(unsigned, kind == 1 ? "mhz" : "?", mhz); }
int nvmlDeviceGetMaxClockInfo(int *gpu, int kind, unsigned *mhz) { ASK(unsigned, kind == 1 ? "most_mhz" : "?", mhz); }
int nvmlDeviceGetPowerUsage(int *gpu, unsigned *mw) { ASK(unsigned, "mw", mw); }
int nvmlDeviceGetEnforcedPowerLimit(int *gpu, unsigned *mw) { ASK(unsigned, "most_mw", mw); }
int nvmlDeviceGetTemperature(int *gpu, int kind, unsigned *celsius) { ASK(unsigned, "celsius", celsius); }
int nvmlDeviceGetCurrentClocksThrottleReasons(int *gpu, unsigned long long *bits) { ASK(unsigned long long, "reasons", bits); }
int nvmlDeviceGetTotalEccErrors(int *gpu, int kind, int counter, unsigned long long *count) {
  ASK(unsigned long long, counter ? "?" : kind ? "uncorrected" : "corrected", count);
}
int nvmlDeviceGetNvLinkErrorCounter(int *gpu, unsigned link, int kind, unsigned long long *count) {
  if (link) return NOT_SUPPORTED;
  ASK(unsigned long long, "link_errors", count);
}
int nvmlDeviceGetCurrPcieLinkWidth(int *gpu, unsigned *lanes) { ASK(unsigned, "lanes", lanes); }
int nvmlDeviceGetPcieReplayCounter(int *gpu, unsigned *count) { ASK(unsigned, "replays", count); }

typedef struct { unsigned gpu, memory; } utilization;
int nvmlDeviceGetUtilizationRates(int *gpu, utilization *both) { ASK(unsigned, "busy", &both->gpu); }

typedef struct { unsigned pid; unsigned long long bytes; unsigned one, other; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(int *gpu, unsigned *count, process *into) {
  double pid;
  int result = said(gpu, "pid", &pid);
  if (result) return result;
  if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
  *count = 1;
  memset(into, 0, sizeof *into);
  into->pid = (unsigned)pid;
  return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } sample;
int nvmlDeviceGetProcessUtilization(int *gpu, sample *into, unsigned *count, unsigned long long since) {
  double sm = 0;
  if (said(gpu, "others", &sm)) return NOT_FOUND;
  if (*count < 1 || !into) { *count = 1; return INSUFFICIENT_SIZE; }
  *count = 1;
  memset(into, 0, sizeof *into);
  into->pid = 1;
  into->sm = (unsigned)sm;
  return SUCCESS;
}
