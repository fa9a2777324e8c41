/* Runs a fuzz target on files, once each: for compilers without libFuzzer, and to look at a crash again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) return perror(argv[i]), 2;
        fseek(file, 0, SEEK_END);
        size_t size = ftell(file);
        uint8_t *data = malloc(size);
        rewind(file);
        if (fread(data, 1, size, file) != size) return perror(argv[i]), 2;
        fclose(file);
        fprintf(stderr, "%s\n", argv[i]);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
