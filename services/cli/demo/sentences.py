"""English sentences: a corpus and queries for people, and samples for the ranking proof."""

# For the printed answers: each query has one sentence that means nearly the same.
CORPUS = (
    "The doctor told her to rest for a week.",
    "Heavy rain flooded the streets of the old town.",
    "He bakes sourdough bread every Sunday morning.",
    "The central bank raised interest rates again.",
    "Our team won the match in the last minute.",
    "A telescope in orbit photographed a distant galaxy.",
    "The train to Berlin leaves from platform nine.",
    "She plays the violin in a chamber orchestra.",
    "Scientists taught a robot to fold laundry.",
    "The museum bought a painting by Vermeer.",
    "Bees are dying because of a new pesticide.",
    "The court found the company guilty of fraud.",
)
QUERIES = (
    "Borrowing money becomes more expensive.",
    "A physician advised the patient to take time off.",
    "Pictures of far away stars were taken from space.",
    "Insects that make honey are disappearing.",
)

# Subjects and predicates by topic; every subject goes with every predicate of its topic.
_TOPICS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("The surgeon", "A young nurse", "The village doctor", "Her dentist", "The vaccine team"),
        (
            "explained the treatment to a worried family.",
            "worked through the night without a break.",
            "wrote a short note in the patient's file.",
            "asked for a second opinion from the hospital in the city.",
            "recommended more sleep and less salt.",
        ),
    ),
    (
        ("A sudden storm", "The drought", "Thick morning fog", "The hurricane", "Early snow"),
        (
            "closed the airport for most of the day.",
            "surprised the farmers in the northern valleys.",
            "was forecast by only one of the weather models.",
            "brought traffic on the mountain pass to a halt.",
            "lasted longer than anyone remembered.",
        ),
    ),
    (
        ("The pastry chef", "My grandmother", "A street vendor", "The new bakery", "Our neighbour"),
        (
            "makes dumplings filled with spinach and cheese.",
            "never shares the recipe for the lemon cake.",
            "roasts coffee beans in a small iron pan.",
            "serves soup so spicy that nobody finishes it.",
            "picks wild mushrooms for the autumn menu.",
        ),
    ),
    (
        (
            "The finance minister",
            "A pension fund",
            "The start-up",
            "An insurer",
            "The trader",
        ),
        (
            "lost millions when the currency collapsed.",
            "plans to borrow money at a lower rate.",
            "published figures that disappointed investors.",
            "sold its shares in the mining company, and prices fell.",
            "will pay less tax under the new law.",
        ),
    ),
    (
        ("The goalkeeper", "A retired sprinter", "The rowing club", "Our captain", "The referee"),
        (
            "trained in the rain before the final.",
            "apologised for the mistake in the second half.",
            "celebrated with fans in front of the stadium.",
            "wants to compete at the next Olympic Games.",
            "was booed by the crowd for ten minutes.",
        ),
    ),
    (
        (
            "An astronomer",
            "The space probe",
            "A small satellite",
            "The observatory",
            "The rover",
        ),
        (
            "discovered water ice below the surface of a moon.",
            "measured the light of an exploding star.",
            "sent back the sharpest images of Saturn so far.",
            "lost radio contact behind the far side of Mars.",
            "mapped the dust between the planets.",
        ),
    ),
    (
        ("The night train", "A delayed ferry", "The tram driver", "Every commuter", "The cyclist"),
        (
            "waited at the closed bridge for an hour.",
            "took the longer route along the coast.",
            "arrived in the capital just after sunrise.",
            "missed the connection to the airport.",
            "passed three villages without stopping.",
        ),
    ),
    (
        ("The pianist", "A brass band", "The opera singer", "Their drummer", "The school choir"),
        (
            "rehearsed the slow movement one more time.",
            "performed a forgotten work from Brazil.",
            "recorded an album in an empty church.",
            "forgot the words of the encore and laughed.",
            "toured small towns all summer long.",
        ),
    ),
    (
        ("A software engineer", "The chip maker", "The chatbot", "An old database", "The hacker"),
        (
            "deleted the backup by accident.",
            "found a serious bug in the encryption library.",
            "needs twice as much memory as last year.",
            "runs on servers cooled by sea water.",
            "answered ten thousand requests in a second.",
        ),
    ),
    (
        ("The sculptor", "A gallery in Paris", "The film director", "A young poet", "The novelist"),
        (
            "finished the most personal work of a long career.",
            "refused the prize in protest against the jury.",
            "turned an abandoned factory into a studio.",
            "was inspired by letters found in an attic.",
            "divided the critics with a silent ending.",
        ),
    ),
    (
        ("A pair of wolves", "The blue whale", "The beekeeper", "A lost penguin", "The ranger"),
        (
            "crossed the frozen lake in search of food.",
            "returned to the forest after a hundred years.",
            "was followed by a camera crew for months.",
            "avoids the noise of ships and boats.",
            "protects the young from hungry foxes.",
        ),
    ),
    (
        ("The judge", "A local newspaper", "The mayor", "The labour union", "An angry tenant"),
        (
            "demanded an inquiry into the housing scandal.",
            "accused the builder of bribing officials.",
            "postponed the decision until after the election.",
            "read the whole contract aloud in court.",
            "defended the right to a peaceful protest.",
        ),
    ),
)


def sample_sentences() -> tuple[str, ...]:
    """Three hundred distinct sentences; neighbours in the order differ in topic.

    The first ones are the queries of a ranking proof, so they must not be all alike.
    """
    pairs = [(s, p) for s in range(5) for p in range(5)]
    return tuple(
        f"{subjects[s]} {predicates[p]}" for s, p in pairs for subjects, predicates in _TOPICS
    )
