"""The registered models of a storage: their versions, and which one was champion when.

<storage>/_models/<name>/
    versions/00000003.json      version 3: a checkpoint of a run
    champions/00000002.json     the second champion: from here on that version

Each document is created once, under the next free number, so that of several processes one has it.
The champion is the version of the newest entry. MLflow's aliases are written from here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.model_names import (
    CHALLENGER,
    CHAMPION,
    ModelAddress,
    check_model_name,
    is_model_name,
)
from train_core.results import ChampionEntry, ModelVersion
from train_core.storage.committed import in_threads
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import (
    LARGEST_NUMBER,
    read_document,
    with_checksum,
)
from train_core.storage.records.names import (
    CHAMPIONS,
    MODELS,
    VERSIONS,
    CheckpointName,
    is_run_name,
    number_of,
    numbered,
)

D = TypeVar("D", ModelVersion, ChampionEntry)


class ModelRegistry:
    """The versions and champions of one registered model.

    All methods raise StorageError, and CheckpointError for a document that was altered.
    """

    def __init__(self, storage: str, model: str) -> None:
        self.model = check_model_name(model)
        self.storage = storage
        self.store = Store(storage).child(MODELS).child(model)

    def versions(self) -> list[ModelVersion]:
        """All versions, oldest first."""
        return in_threads(self.version, self.version_numbers())

    def version(self, number: int) -> ModelVersion:
        """One version. Raises ConfigError if there is none of that number."""
        try:
            found = self._read(ModelVersion, VERSIONS, number, "a version of a registered model")
        except FileNotFoundError:
            there = ", ".join(map(str, self.version_numbers())) or "none"
            raise ConfigError(
                f"model {self.model!r} in {self.storage} has no version {number}: {there}"
            ) from None
        return self._checked(found, VERSIONS, number, found, found.version)

    def version_numbers(self) -> list[int]:
        """Those of all versions, in their order."""
        return self._numbers(VERSIONS)

    def champions(self) -> list[ChampionEntry]:
        """All entries, oldest first."""
        return in_threads(self._champion, self.champion_numbers())

    def champion_numbers(self) -> list[int]:
        """Those of all entries, in their order."""
        return self._numbers(CHAMPIONS)

    def champion(self) -> ChampionEntry | None:
        """The newest entry: who is champion now."""
        numbers = self.champion_numbers()
        return self._champion(numbers[-1]) if numbers else None

    def entry(self, number: int) -> ChampionEntry | None:
        """The entry of that number; None if there is none yet."""
        try:
            return self._champion(number)
        except FileNotFoundError:
            return None

    def add_version(self, run: str, checkpoint: str, digest: str) -> ModelVersion:
        """The version that this checkpoint is; a new one if it is none yet."""
        for known in reversed(self.versions()):
            if (known.run, known.checkpoint_digest) == (run, digest):
                return known
        while True:
            numbers = self.version_numbers()
            number = numbers[-1] + 1 if numbers else 1
            self._check_free(VERSIONS, number)
            made = ModelVersion(
                model=self.model,
                version=number,
                run=run,
                checkpoint=checkpoint,
                checkpoint_digest=digest,
                created_at=datetime.now(UTC).isoformat(),
            )
            try:
                self.store.create(f"{VERSIONS}/{numbered(made.version)}", with_checksum(made))
            except FileExistsError:
                continue  # another run has taken the number
            return made

    def add_champion(self, entry: ChampionEntry) -> ChampionEntry:
        """Make a version the champion, if the champion before is still the one before it.

        The same decision again gives the entry that it has made. Raises FileExistsError if somebody
        else has made another version the champion meanwhile.
        """
        self._check_free(CHAMPIONS, entry.number)
        try:
            self.store.create(f"{CHAMPIONS}/{numbered(entry.number)}", with_checksum(entry))
        except FileExistsError:
            there = self._champion(entry.number)
            if (there.decided_by, there.version) != (entry.decided_by, entry.version):
                raise
            return there
        return entry

    def resolve(self, address: ModelAddress) -> ModelVersion:
        """The version that an address means now. Raises ConfigError if there is none."""
        if address.version is not None:
            return self.version(address.version)
        if address.alias == CHAMPION:
            found = self.champion()
            if found is None:
                raise ConfigError(f"model {self.model!r} in {self.storage} has no champion yet")
            return found.version
        numbers = self.version_numbers()
        if address.alias == CHALLENGER and numbers:
            return self.version(numbers[-1])
        raise ConfigError(
            f"model {self.model!r} in {self.storage} has no alias {address.alias!r}: "
            f"there are {CHAMPION} and {CHALLENGER}"
        )

    def _champion(self, number: int) -> ChampionEntry:
        found = self._read(ChampionEntry, CHAMPIONS, number, "a champion's entry")
        return self._checked(found, CHAMPIONS, number, found.version, found.number)

    def _read(self, model: type[D], log: str, number: int, what: str) -> D:
        key = f"{log}/{numbered(number)}"
        return read_document(self.store, model, key, what, has_checksum=True)[0]

    def _checked(self, found: D, log: str, number: int, version: ModelVersion, its: int) -> D:
        """The document, if it is the one of that number, and of this model."""
        if (version.model, its) != (self.model, number):
            raise CheckpointError(
                f"{self.store.uri(f'{log}/{numbered(number)}')} is that of number {its} of "
                f"{version.model!r}: it was renamed"
            )
        is_one = is_run_name(version.run) and CheckpointName.parse(version.checkpoint)
        if not is_one or version.version > LARGEST_NUMBER:
            raise CheckpointError(
                f"{self.store.uri(f'{log}/{numbered(number)}')} names no checkpoint of a run: "
                f"version {version.version} is {version.run!r}, {version.checkpoint!r}"
            )
        return found

    def _check_free(self, log: str, number: int) -> None:
        """Raise CheckpointError if no document of that number would be found again."""
        if number > LARGEST_NUMBER:
            raise CheckpointError(
                f"{self.store.uri(f'{log}/{numbered(number - 1)}')} is not evertrain's: no model "
                "has so many. Delete it"
            )

    def _numbers(self, log: str) -> list[int]:
        return sorted(filter(None, map(number_of, self.store.names(log))))


def registered_models(storage: str) -> list[str]:
    """The names of the storage's registered models, sorted."""
    return sorted(filter(is_model_name, Store(storage).child(MODELS).names("")))


def championships(storage: str, run: str) -> list[ModelVersion]:
    """The versions that are a champion now and a checkpoint of this run."""
    entries = (ModelRegistry(storage, model).champion() for model in registered_models(storage))
    return [entry.version for entry in entries if entry and entry.version.run == run]
